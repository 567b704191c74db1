"""What is measured: each module makes one system do the same job."""
