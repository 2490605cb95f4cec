"""Who answers events: each handler gets ports and the inbox, never the loop."""
