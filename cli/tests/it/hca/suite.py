"""Runs the pyverbs suite of rdma-core and prints a line for each test: its name, how it ended, and why.

Usage: suite.py FOLDER, where FOLDER/tests is the suite. Python may not stop at a test: a crash is the end of the output.
"""

import importlib
import os
import sys
import unittest


class Lines(unittest.TestResult):
    """A result that prints one line as each test ends."""

    def line(self, test, outcome, reason=""):
        print("\t".join(["pyverbs", test.id(), outcome, " ".join(str(reason).split())]), flush=True)

    def addSuccess(self, test):
        self.line(test, "ok")

    def addSkip(self, test, reason):
        self.line(test, "skipped", reason)

    def addError(self, test, err):
        self.line(test, "error", err[1])

    def addFailure(self, test, err):
        self.line(test, "failed", err[1])


def main():
    folder = sys.argv.pop(1)
    # As the suite's own program does: its modules find each other, and its options are all defaults.
    sys.path[:0] = [os.path.join(folder, "tests"), folder]
    tests = importlib.import_module("tests")
    importlib.import_module("args_parser").parser.parse_args()
    unittest.defaultTestLoader.loadTestsFromModule(tests).run(Lines())
    print("pyverbs\tend", flush=True)


main()
