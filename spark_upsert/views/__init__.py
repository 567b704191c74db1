"""Views: what a plan makes of tables, kept up to date by their changes alone."""
