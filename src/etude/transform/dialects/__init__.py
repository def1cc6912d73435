"""Dialects: what a consumer of `.et` files needs and a Job does not hold. They are applied at the door of export."""
