"""Attention, taken apart and drawn."""
