CREATE TABLE orders (
  id BIGINT PRIMARY KEY,
  customer TEXT NOT NULL,
  amount NUMERIC(12, 2) NOT NULL,
  due DATE,
  changed TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp()
);
CREATE PUBLICATION orders FOR TABLE orders;
INSERT INTO orders (id, customer, amount, due) VALUES
  (1, 'Ada', 10.50, '2026-03-01'), (2, 'Bob', 20.00, NULL), (3, 'Eve', 30.00, '2026-03-03');
