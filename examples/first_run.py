"""Your first private federation: real handwritten digits, split over 20 clients, trained with a promise. Run it: python
first_run.py
"""

import sordino

# Without an experiment it is the default one: `sordino run` does the same on the command line.
# Every client trains on its own images; what it sends is clipped and noised before it leaves.
result = sordino.run(progress=True)

# What came out, and what was promised: one epsilon never stands alone, it says for what and against whom.
print(result)

# The numbers as data frames (pip install 'sordino[frames]'). One row per round ...
columns = ["round", "accuracy", "clients_mean", "clients_worst_tenth", "spent_share"]
print("\nThe last rounds:")
print(result.rounds[columns].tail(3).to_string(index=False))

# ... one per client: they differ in size and in classes, and so in how well the shared model serves them ...
print("\nThe three clients that are served worst:")
print(
    result.clients.nsmallest(3, "accuracy")[["client", "examples", "participations", "accuracy"]].to_string(index=False)
)

# ... and one per guarantee. Nobody is told more than this about one example; about a whole client nothing is promised.
print("\nWhat was promised:")
print(result.privacy.drop(columns=["nominal_epsilon", "accountant", "because", "releases"]).to_string(index=False))

# The page with the curves, the spending and the guarantee in words; and the model itself.
print(f"\nThe report: {result.report()}")
print(f"The model:  {', '.join(f'{name} {tuple(value.shape)}' for name, value in result.model.items())}")
