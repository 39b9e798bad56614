"""Recipes for the model family and its ablations."""
