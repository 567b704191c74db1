UPDATE orders SET amount = amount + 1, changed = clock_timestamp() WHERE id = 1;
DELETE FROM orders WHERE id = 2;
INSERT INTO orders (id, customer, amount) VALUES (4, 'Kim', 40.00);
