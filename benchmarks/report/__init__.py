"""The report that `make bench` writes: [`page`][benchmarks.report.page] puts it together."""
