"""What epochs did, as retractions and insertions."""
