"""Many parts of one size over one data connection; for our regions alone."""
