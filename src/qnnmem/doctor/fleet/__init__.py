"""Parallel reading of many logs: executors, byte ranges and summaries."""

from qnnmem.doctor.fleet.executors import cluster_executor, jobs_executor
from qnnmem.doctor.fleet.read import bytes_of, diagnose_with

__all__ = ["bytes_of", "cluster_executor", "diagnose_with", "jobs_executor"]
