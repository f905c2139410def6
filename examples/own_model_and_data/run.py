"""Your own table and your own model: eight clinics learn together and keep their rows. Run it in this folder: python
run.py
"""

import task
import torch

import sordino

# visits.csv holds 569 visits, each with the clinic that holds it (Breast Cancer Wisconsin, UCI 1993, CC BY 4.0; dealt
# to eight clinics by chance). What is learned, from what, by whom and at what price is said in clinics.toml; here only
# where it is to be kept.
result = sordino.run("clinics.toml")
print(result)

print("\nClinic by clinic: what it brought, what it spent of its budget, what it got:")
print(result.clients[["client", "examples", "spent_share", "accuracy"]].to_string(index=False))

# How much does privacy cost here? The same without any: the accuracy is the ceiling, the promise is gone.
open_ = sordino.run("clinics.toml", name="open", algorithm={"name": "fedavg", "lr": 0.1}, privacy={})
print(f"\nWithout privacy: accuracy {open_.accuracy:.1%}; {open_.promise}")

# The model is yours: plain tensors by name, for the class you wrote.
net = task.Net(hidden=16)
net.load_state_dict(result.model)
with torch.no_grad():
    print(f"\nScores of a visit in the middle of every range: {net(torch.zeros(1, 30)).tolist()[0]}")
