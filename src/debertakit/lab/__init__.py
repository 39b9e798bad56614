"""The family and its ablations on one harness."""
