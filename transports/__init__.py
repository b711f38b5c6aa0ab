"""The contract between Farpool and its transports, and one folder for each transport."""
