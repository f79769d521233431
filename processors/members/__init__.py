"""Who is in a consumer group, at any gateway, and how its members read: mapped onto pop, or by pull."""
