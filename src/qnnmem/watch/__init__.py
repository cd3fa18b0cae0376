"""Any program that uses QNN, watched while it runs, and its errors made on purpose."""
