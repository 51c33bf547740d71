"""The pages: each module answers the requests of one of them."""
