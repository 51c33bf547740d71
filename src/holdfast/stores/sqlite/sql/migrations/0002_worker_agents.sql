-- The agents whose runs a worker takes: a JSON array of names.
ALTER TABLE workers ADD COLUMN agents TEXT NOT NULL DEFAULT '[]';
