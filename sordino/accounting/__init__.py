"""Privacy accounting: events, what they cost, accountants, and the statement of guarantees."""
