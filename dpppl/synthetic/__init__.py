"""Synthetic tables with valid inference: a model of a table, draws of whole tables, and rules that combine their analyses."""

from dpppl.synthetic.cells import CellDetails, CellFit, fit_cells
from dpppl.synthetic.combining import RULES, Combined, combine
from dpppl.synthetic.datasets import datasets
from dpppl.synthetic.schema import Category, Intervals, Number, Schema
from dpppl.synthetic.table import table_model

__all__ = [
    "RULES",
    "Category",
    "CellDetails",
    "CellFit",
    "Combined",
    "Intervals",
    "Number",
    "Schema",
    "combine",
    "datasets",
    "fit_cells",
    "table_model",
]
