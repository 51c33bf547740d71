-- The functions are not compiled by a server with `jit = on`.
select;
