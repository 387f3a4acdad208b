"""What a report of runs is made of; :mod:`loadtests.report` is its command line."""
