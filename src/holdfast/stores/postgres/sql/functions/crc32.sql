-- CRC-32 as zlib computes it.
create or replace function holdfast.crc32(p_data bytea) returns bigint
language plpgsql immutable as $$
declare
    steps bigint[] := '{}';
    remainder bigint;
    crc bigint := 4294967295;
begin
    for value in 0..255 loop
        remainder := value;
        for bit in 1..8 loop
            remainder := (remainder >> 1) # (remainder & 1) * 3988292384;
        end loop;
        steps := steps || remainder;
    end loop;
    for place in 0..length(p_data) - 1 loop
        crc := (crc >> 8) # steps[((crc # get_byte(p_data, place)) & 255) + 1];
    end loop;
    return crc # 4294967295;
end
$$;
