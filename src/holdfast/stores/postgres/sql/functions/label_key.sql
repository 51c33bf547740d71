-- The key of a label. Two labels may have the same key, though hardly ever: compare the labels too.
create or replace function holdfast.label_key(p_name text, p_value text) returns bigint
language sql immutable as $$
    select hashtextextended(length(p_name) || ':' || p_name || p_value, 0)
$$;
