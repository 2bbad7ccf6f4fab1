"""Synthetic tables with valid inference: a model of a table, draws of whole tables, and rules that combine their analyses."""

from dpppl.contrib.synthetic.cells import CellDetails, CellFit, fit_cells
from dpppl.contrib.synthetic.combining import RULES, Combined, combine
from dpppl.contrib.synthetic.datasets import datasets
from dpppl.contrib.synthetic.schema import Category, Intervals, Number, Schema
from dpppl.contrib.synthetic.table import table_model

__all__ = [
    "RULES", "Category", "CellDetails", "CellFit", "Combined", "Intervals", "Number", "Schema", "combine", "datasets",
    "fit_cells", "table_model",
]  # fmt: skip
