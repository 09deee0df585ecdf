"""Everything that people and CI servers look at: tables and lines, HTML pages, Markdown, JUnit; one style for all.

May import: `harness.gate`, `harness.measure`, `harness.faults` and what is below them, of which it shows the results.
None of those import a page; all may use `numbers` and `tables`, which import nothing of ours.
"""
