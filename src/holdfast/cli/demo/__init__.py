"""`holdfast demo`: an agent is killed again and again, goes on, and finishes; then what happened is counted."""
