"""Who may do what on this broker: `users/` has users and policies (ACL 2.0)."""
