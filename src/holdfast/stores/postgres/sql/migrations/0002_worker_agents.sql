-- The agents whose runs a worker takes: a JSON array of names.
alter table holdfast.worker add column agents text not null default '[]';
