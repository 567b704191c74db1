def write_report(found, output): pass
