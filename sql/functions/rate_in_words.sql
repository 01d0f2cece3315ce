-- rate_in_words: a rate for people: 100 jobs a second, 1 job in 1 h.
--
-- Moves nothing. Locks nothing. Raises nothing.
-- Called by why's reasons and by doctor; not for users.
create or replace function pgqueue.rate_in_words(p_rate integer, p_seconds real) returns text
language plpgsql immutable security definer set search_path = pgqueue, pg_temp
as $$
begin
  return format('%s %s', case p_rate when 1 then '1 job' else p_rate || ' jobs' end,
    case p_seconds when 1 then 'a second' else 'in ' || case when p_seconds < 1 then p_seconds || ' s' else pgqueue.in_words(make_interval(secs => p_seconds)) end end);
end
$$;
comment on function pgqueue.rate_in_words is 'A rate for people. Not for users.';
