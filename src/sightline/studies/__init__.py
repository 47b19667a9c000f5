"""Studies: suites of training runs on one budget, and the published tables to stand beside them.

A suite file makes a list of cells (:mod:`~sightline.studies.suite`); each runs in a process of its own and leaves one JSON
file (:mod:`~sightline.studies.cells`); these become tables and a page
(:mod:`~sightline.studies.suite_page`).
"""
