"""Attention decomposition and visualisation."""
