"""Invents a table of visits for each of three hospitals, and one that the server may have. Nobody in them exists; the
hospitals differ in size and in the age of who comes to them.

    python make_tables.py               all four
    python make_tables.py hospital-a    this one
"""

import csv
import random
import sys

PLACES = {"hospital-a": (900, 45), "hospital-b": (600, 60), "hospital-c": (450, 70), "reference": (500, 58)}
COLUMNS = ["visit", "age", "pressure", "glucose", "sex", "smoker", "outcome"]

for number, (place, (visits, age_there)) in enumerate(PLACES.items()):
    if place not in (sys.argv[1:] or PLACES):
        continue
    chance = random.Random(number)
    with open(f"{place}.csv", "w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(COLUMNS)
        for visit in range(visits):
            age = min(100, max(18, chance.gauss(age_there, 14)))
            pressure, glucose = chance.gauss(110 + 0.5 * age, 14), max(3, chance.gauss(5 + 0.02 * age, 1.2))
            sex, smoker = chance.choice(["female", "male"]), chance.random() < 0.3
            risk = 0.05 * (age - 58) + 0.03 * (pressure - 138) + 0.6 * (glucose - 6) + smoker - 0.3
            outcome = "ill" if chance.gauss(risk, 0.7) > 0 else "well"
            table.writerow(
                [f"{place}-{visit:04d}", f"{age:.0f}", f"{pressure:.0f}", f"{glucose:.1f}", sex, int(smoker), outcome]
            )
