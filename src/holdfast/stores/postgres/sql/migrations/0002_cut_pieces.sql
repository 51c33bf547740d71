-- A piece that would not fit on a page any more is cut there, so that pages are filled to the end. Pieces of before stay as
-- they are. What is new is in the functions: `write_batch`, `load_run` and `sweep`; and `purge_runs` leaves the end of a
-- child where it is until its parent is done.
comment on column holdfast.piece.run is 'of the rest of a piece that was cut: the negative of its run';
comment on column holdfast.piece.layout is 'begins with a plus sign if the piece was cut, and is empty for its rest';
-- What the bodies look like helps no plan.
alter table holdfast.piece alter column body set statistics 0;
