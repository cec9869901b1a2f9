"""A shop that publishes its orders, and a warehouse that reserves what was ordered."""
