"""Audits, synthetic tables, the command line, pictures, pages, scores of predictions: the core needs none of it."""
