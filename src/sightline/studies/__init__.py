"""Studies: suites of training runs on one budget, and the published tables to compare with.

A suite file defines a list of cells (:mod:`~sightline.studies.suite`); each runs in a process of its own and writes one
JSON file (:mod:`~sightline.studies.cells`); these become tables and a page (:mod:`~sightline.studies.suite_page`).
"""
