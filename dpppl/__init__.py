"""Differentially private inference for NumPyro models."""
