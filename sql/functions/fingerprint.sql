-- fingerprint: eight letters that are the same for errors which differ only in numbers, ids and quoted values.
--
-- Moves nothing. Locks nothing. Raises nothing.
-- Called by dead_groups, list_dead, retry_many, purge and job_filter; not for users.
create or replace function pgqueue.fingerprint(error_type text, error text) returns text
language plpgsql immutable security definer set search_path = pgqueue, pg_temp
as $$
begin
  -- Of a long message the beginning; a word of hexadecimal digits counts as a number when it has one from 0 to 9.
  return left(encode(sha256(convert_to(concat(error_type, ': ', regexp_replace(left(error, 300),
    '''[^'']*''|"[^"]*"|\m(0x)?[0-9a-f]*[0-9][0-9a-f]*\M|[0-9]+', '#', 'gi')), 'UTF8')), 'hex'), 8);
end
$$;
comment on function pgqueue.fingerprint is 'The same for errors that differ only in numbers, ids and quoted values.';
