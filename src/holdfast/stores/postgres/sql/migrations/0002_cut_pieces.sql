-- A segment that does not fit into the rest of a page is split there, so that pages are full. Earlier segments stay as
-- they are. The functions `write_batch`, `load_run` and `sweep` do it. `purge_runs` keeps the result of a child until its
-- parent is terminal.
comment on column holdfast.piece.run is 'of the rest of a piece that was cut: the negative of its run';
comment on column holdfast.piece.layout is 'begins with a plus sign if the piece was cut, and is empty for its rest';
-- Statistics about bodies help no plan.
alter table holdfast.piece alter column body set statistics 0;
