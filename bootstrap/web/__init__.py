"""Pages in the browser: their servers, the rules of access, and what they show."""
