"""Half messages: their ids, their ends (commit or rollback), and the checks that brokers request."""
