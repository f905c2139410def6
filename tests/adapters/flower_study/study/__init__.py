"""A whole sordino experiment as a Flower app."""
