"""Compare pretraining recipes: equal budgets, measures that mean the same for every model, claims with statistics."""
