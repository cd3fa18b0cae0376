"""Diagnosis of logs: from a failing log to the stage, the cause and the missing bytes."""
