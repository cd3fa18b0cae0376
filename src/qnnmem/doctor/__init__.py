"""Diagnosis of logs: the stage and cause of each failure, and how much memory is missing."""
