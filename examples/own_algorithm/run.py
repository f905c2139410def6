"""Compare your algorithm (fedprox.py) with FedAvg, then make it private. Run it in this folder: python run.py"""

import statistics
from itertools import pairwise

import sordino

# Clients that differ much (few classes each), four of them in every round, many local steps: what FedProx was made for.
SETTING = {
    "rounds": 15,
    "partition": {"scheme": "dirichlet", "clients": 20, "alpha": 0.1},
    "cohort": {"name": "random", "size": 4},
}
LOCAL = {"local_epochs": 5, "lr": 0.1}

# "fedprox:FedProx" is the class FedProx in fedprox.py, looked up where you start.
METHODS = {
    "fedavg": {"name": "fedavg"},
    "fedprox, mu = 0.1": {"name": "fedprox:FedProx", "mu": 0.1},
    "fedprox, mu = 1": {"name": "fedprox:FedProx", "mu": 1.0},
}

print(f"{'method':<20} {'accuracy, last 5 rounds':>24} {'up and down between rounds':>28}")
for name, algorithm in METHODS.items():
    late, swing = [], []
    for seed in (0, 1):  # the same seed means the same partition, cohorts and first weights for every method
        result = sordino.run(SETTING, name=f"{name}-{seed}", seed=seed, algorithm=algorithm | LOCAL)
        accuracy = [row.accuracy for row in result.metrics]
        late.append(statistics.mean(accuracy[-5:]))
        swing.append(statistics.mean(abs(b - a) for a, b in pairwise(accuracy[5:])))
    print(f"{name:<20} {statistics.mean(late):>24.1%} {statistics.mean(swing):>28.1%}")

print("\nTwo seeds are a look, not a result: `sordino compare` runs more and says how sure it is.")

# Nothing in fedprox.py knows about privacy. Put a gate between examples and algorithm, and it is private: each
# example's gradient is clipped to norm 1, the noise is sized so that the whole run costs epsilon 8.
private = sordino.run(
    name="private",
    rounds=20,
    algorithm={"name": "fedprox:FedProx", "mu": 0.1, "lr": 2.0, "batch_size": "full"},
    read={"name": "noisy_gradient", "clip": 1.0},
)
print(f"\nThe same file with a gate in front of it, on the default 20 clients:\n{private!r}")
