"""Shared QNN vocabulary: error codes, enums, tensor descriptors, findings."""
