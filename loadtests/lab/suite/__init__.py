"""The suite that policies are chosen and judged on: its file, its cells, its runs, and its marks."""

from loadtests.lab.suite.cells import Part, SuiteCell
from loadtests.lab.suite.suite_file import Suite, read_suite

__all__ = ["Part", "Suite", "SuiteCell", "read_suite"]
